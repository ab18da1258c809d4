# The tests of those who watch, in the build that lets them. Python's are of the chapters' programs.
doctest_program(requests_test common/watch/tests/requests_test.cpp
                LIBRARIES watch watched quick_to_build)  # its kernels are watched
add_test(NAME requests COMMAND requests_test)

add_library(race_kernels OBJECT common/watch/tests/race_kernels.cpp)
target_link_libraries(race_kernels PRIVATE project_options quick_to_build watched)
doctest_program(races_test common/watch/tests/races_test.cpp LIBRARIES watch race_kernels)
add_test(NAME races COMMAND races_test)

add_library(gpu_race_kernels OBJECT common/watch/tests/gpu_race_kernels.cpp)
target_link_libraries(gpu_race_kernels PRIVATE project_options quick_to_build watched)
doctest_program(gpu_races_test common/watch/tests/gpu_races_test.cpp LIBRARIES watch gpu_race_kernels)
add_test(NAME gpu_races COMMAND gpu_races_test)

# planted_races compiles kernels anew, each with a fault.
file(GLOB python_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/common/watch/tests/*_test.py)
add_python_tests(${python_tests})
