# The kinds of tests that both builds have: the ordinary one (tests.cmake) and the one that watches
# (common/watch/tests/tests.cmake).
add_library(doctest_main OBJECT common/tools/doctest_main.cpp)
target_link_libraries(doctest_main PUBLIC project_options quick_to_build)

# doctest_program(NAME SOURCE… LIBRARIES TARGET…)
function(doctest_program name)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "" LIBRARIES)
  add_executable(${name} ${of_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE doctest_main ${of_LIBRARIES})
endfunction()

# add_python_tests(FILE…): each as a test of its own, x_test.py as x.
function(add_python_tests)
  foreach(file IN LISTS ARGN)
    string(REGEX REPLACE "^.*/|_test\\.py$" "" name ${file})
    add_test(NAME ${name} COMMAND bash ${CMAKE_SOURCE_DIR}/common/tools/test_python.sh ${file}
                                  --build ${CMAKE_BINARY_DIR})
    set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} SKIP_RETURN_CODE 77)
  endforeach()
endfunction()
