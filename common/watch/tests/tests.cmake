# The tests of those who watch, in the build that lets them.
add_library(doctest_main OBJECT common/tools/doctest_main.cpp)
target_link_libraries(doctest_main PUBLIC project_options quick_to_build)

add_executable(requests_test common/watch/tests/requests_test.cpp)  # its kernels are watched
target_link_libraries(requests_test PRIVATE doctest_main watch watched quick_to_build)
add_test(NAME requests COMMAND requests_test)

add_library(race_kernels OBJECT common/watch/tests/race_kernels.cpp)
target_link_libraries(race_kernels PRIVATE project_options quick_to_build watched)
add_executable(races_test common/watch/tests/races_test.cpp)
target_link_libraries(races_test PRIVATE doctest_main watch race_kernels)
add_test(NAME races COMMAND races_test)

# watch_python_test(NAME FILE): a test in Python, of the chapters' programs in this build.
function(watch_python_test name file)
  add_test(NAME ${name} COMMAND bash ${CMAKE_SOURCE_DIR}/common/tools/test_python.sh ${file}
                                --build ${CMAKE_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
                                          SKIP_RETURN_CODE 77)
endfunction()
watch_python_test(count common/watch/tests/count_test.py)
watch_python_test(trace common/watch/tests/trace_test.py)
watch_python_test(race common/watch/tests/race_test.py)
# Compiles six chapters anew, each with faults.
watch_python_test(planted_races common/watch/tests/planted_races_test.py)
